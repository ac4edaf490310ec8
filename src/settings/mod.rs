//! Settings from the command line and the environment, resolved once at the start.
//!
//! [`Flags`] hold the raw text of the command line. [`Settings::resolve`] takes each setting from its flag, else from its
//! variable, else its default, and reports all errors at once; [`log_format`] is known even then. The rest of
//! the service reads only [`Settings`].

mod admin;
mod bounds;
mod coordination;
mod credentials;
mod disk;
mod environment;
mod flags;
mod json;
mod mogrifiers;
mod otlp;
mod otlp_metrics;
mod parse;
mod reader;
mod recording;
mod redis_port;
mod resolve;
mod stores;
mod table;
mod tls;
mod trace;
mod unknown;
mod unsupported;
mod xds;

pub use credentials::{CredentialError, ServiceEnvironment};
pub use environment::{Environment, ProcessEnvironment};
pub use flags::{FlagValues, Flags};
pub(crate) use parse::duration as parse_duration;
pub use reader::SettingErrors;
pub use resolve::{
    GrpcAddress, GrpcSettings, ListenAddress, LogSettings, PrometheusSettings, RedisPortSettings,
    RulesSettings, Settings, StopSettings, debug_address, decisions, file_options, http_address, log_format,
    rules_dir, shared_counts,
};
pub use table::help;
