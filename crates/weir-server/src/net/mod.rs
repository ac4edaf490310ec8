//! Sockets: binding, accepting, and how long connections live. Shared by all servers; knows no protocol.

mod accept;
mod age;
mod bind;
mod files;
mod unix;

pub use accept::{Accepted, Listener};
pub use age::ConnectionAge;
pub use bind::{BindError, BoundAddress, bind_tcp};
pub use files::raise_open_files;
