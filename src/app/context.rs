//! The state that all servers and the rule loader share.

use crate::{server::http, store::AnyStore};

pub(super) type AppContext = http::ServiceContext<AnyStore>;
