"""The formats in which models write reasoning and tool calls."""
