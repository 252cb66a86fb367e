//! Policies: compiled tables against a plain reading of the API documentation, and the scenarios of a truth
//! table.

mod properties;
mod reference;
mod table;
