"""The shapes of requests and responses (pydantic models). The dashboard's types are generated from them."""
