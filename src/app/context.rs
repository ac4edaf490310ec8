//! The state that all servers and the rule loader share.

use weir_client::AnyStore;
use weir_server::http;

pub(super) type AppContext = http::ServiceContext<AnyStore>;
