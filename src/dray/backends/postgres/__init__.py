"""PostgreSQL 13 or newer through psycopg 3."""

from dray.backends.postgres.database import PostgresDatabase

__all__ = ["PostgresDatabase"]
