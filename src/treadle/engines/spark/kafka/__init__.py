"""How far Kafka sources are behind, in rows and in seconds."""
