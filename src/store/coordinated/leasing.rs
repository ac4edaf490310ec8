//! What the parts of the `lease` mode share. They decide (`lease.rs`), fetch leases (`fetching.rs`), request single hits (`single.rs`) and
//! settle counters before the store decides (`settle.rs`).

use std::sync::Arc;

use super::{
    client::StoreClient,
    table::{CounterTable, LeaseWork},
};
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
        table.do_lease_work_by(Box::new(move |key, work| {
            if let Some(table) = weak.upgrade() {
                let lease = Self { table, client: Arc::clone(&renewing) };
                match work {
                    LeaseWork::Renew => lease.fetch(key),
                    LeaseWork::Receive => lease.receive(key),
                }
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
