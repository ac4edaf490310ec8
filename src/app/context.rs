//! The state that all servers and the rule loader share.

use crate::{server::http, store::AnyStore};

/// The handles that all servers and the rule loader share.
pub(super) type AppContext = http::ServiceContext<AnyStore>;
