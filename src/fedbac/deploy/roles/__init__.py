"""What each site does: the cloud, edges and clients as programs of their own."""
