"""What travels: every message is declared once, and written, read and checked by its declaration."""
