//! The API server beside a kube-apiserver: the same requests to both, and what their answers differ in.

pub mod accepted;
pub mod compare;
pub mod kinds;
pub mod mutation;
pub mod patch;
pub mod place;
pub mod plan;
pub mod report;
pub mod schema;
pub mod seeded;
pub mod server;
pub mod words;
