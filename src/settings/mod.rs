//! What the command line and the environment have to say, resolved once; nothing later sees either of them.
//!
//! Two steps: [`Flags`] are raw text, as clap read it. [`Settings::resolve`] puts flags before variables before
//! defaults, and tells of everything that is wrong at once.

mod coordination;
mod environment;
mod flags;
mod parse;
mod reader;
mod redis;
mod resolve;
mod resolved;
mod unsupported;

pub use environment::{Environment, ProcessEnvironment};
pub use flags::Flags;
pub(crate) use parse::duration as parse_duration;
pub use reader::{SettingError, SettingErrors};
pub use resolved::{
    Address, GrpcAddress, GrpcSettings, LogSettings, PrometheusSettings, RulesSettings, Settings,
    StopSettings,
};
