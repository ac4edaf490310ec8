//! What the parts of the `lease` mode share. They decide (`lease.rs`), fetch leases (`fetching.rs`), request single hits (`single.rs`) and
//! settle counters before the store decides (`settle.rs`).

use std::sync::Arc;

use super::{client::StoreClient, table::CounterTable};
use crate::store::remote::Remote;

/// Decides from leases, and fetches them.
pub(super) struct Lease<R> {
    pub(super) table: Arc<CounterTable<R>>,
    pub(super) client: Arc<StoreClient<R>>,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        let (weak, renewing) = (Arc::downgrade(&table), Arc::clone(&client));
        table.renew_leases_by(Box::new(move |key| {
            if let Some(table) = weak.upgrade() {
                Self { table, client: Arc::clone(&renewing) }.fetch(key);
            }
        }));
        Self { table, client }
    }
}

/// Shares the table and the client.
impl<R> Clone for Lease<R> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), client: Arc::clone(&self.client) }
    }
}
