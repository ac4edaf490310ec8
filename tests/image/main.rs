//! The image: built from the Dockerfile and run by a real Docker engine, alone and by compose.yaml. Skipped where there is no engine.

mod compose;
mod container;
mod docker;
