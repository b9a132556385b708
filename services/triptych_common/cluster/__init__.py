"""Which other services are there: resolvers find their addresses, connections watch them, pools choose among them."""
