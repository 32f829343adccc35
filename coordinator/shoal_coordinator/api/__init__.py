"""The REST API: the FastAPI application, authentication, routes and what they show."""
