"""Who is believed: certificates, their authority, and the kits that carry them to sites."""
