"""Plan files: schema, reading and writing."""
