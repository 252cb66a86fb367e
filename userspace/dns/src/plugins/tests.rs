//! Tables of pure cases, a plugin each.
