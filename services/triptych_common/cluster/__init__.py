"""Other services: resolvers find their addresses, connections watch them, pools choose among them."""
