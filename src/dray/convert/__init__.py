"""Python's types and JSON's: a caller's values become JSON, and a body gets the types it is annotated with.

| type | in JSON |
|---|---|
| None, bool, int, float, str, list, dict | the same |
| datetime (aware), date, time | ISO 8601 text; a naive datetime is refused, because it names no instant |
| timedelta | seconds, exact to the microsecond up to 270 years |
| UUID, Decimal, Path | text |
| bytes, bytearray | base64 |
| tuple, NamedTuple, set, frozenset | a list; a set's is sorted, so that equal sets are written alike |
| Enum | its value |
| dataclass, TypedDict | an object |
| pydantic and msgspec models | what their library makes of them |

`to_json` looks at the value, `reader` at the annotation. Types are strict: no text is read as a number, no number
as a bool; only an int is taken for a float. An annotation that is not in the table (a protocol, a type variable, a
class of the user's) changes nothing: the JSON value is passed as it is.

Errors name the path and the types, not the value: it may be a secret.
"""
