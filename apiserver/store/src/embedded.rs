//! The embedded store: a write-ahead log with group commit under an in-memory index.
