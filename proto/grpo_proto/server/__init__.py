"""What the servers share: the socket, the connection, and how they say no."""
