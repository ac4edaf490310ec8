//! The service: wiring, start and stop order, background tasks.

mod addresses;
mod clock;
mod error;
mod expiry;
mod lifecycle;
mod metric_names;
mod reload;
mod rules;
mod servers;
mod shutdown;
mod store;
mod store_state;
mod sweep;
mod timezones;

pub use addresses::Addresses;
pub use error::AppError;
pub use lifecycle::App;
pub use reload::Reload;

/// The state that all servers and the rule loader share.
type AppContext = weir_server::http::ServiceContext<weir_client::AnyStore>;
