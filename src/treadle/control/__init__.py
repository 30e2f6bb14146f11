"""Changes what runs already: its settings, and the socket by which another process changes them."""
