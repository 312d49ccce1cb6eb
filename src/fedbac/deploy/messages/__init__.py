"""What travels: orders and reports between cloud and edges, lessons and questions between sites and clients."""
