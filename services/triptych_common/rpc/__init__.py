"""What every gRPC service needs: server, channels, errors, interceptors, control service."""
