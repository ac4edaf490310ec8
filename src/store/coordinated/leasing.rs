//! What the parts of the `lease` mode share. They decide (`lease.rs`), fetch leases (`fetching.rs`), request single hits (`single.rs`) and
//! settle counters before the store decides (`settle.rs`).

use std::sync::Arc;

use super::{
    client::StoreClient,
    table::{CounterTable, LeaseWork},
};
use crate::{limit::Period, store::remote::Remote};

/// Decides from leases, and fetches them.
pub(super) struct Lease<R> {
    pub(super) table: Arc<CounterTable<R>>,
    pub(super) client: Arc<StoreClient<R>>,
    /// The longest that a decision waits.
    budget: Period,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>), budget: Period) -> Self {
        let (weak, renewing) = (Arc::downgrade(&table), Arc::clone(&client));
        table.do_lease_work_by(Box::new(move |key, work| {
            if let Some(table) = weak.upgrade() {
                let lease = Self { table, client: Arc::clone(&renewing), budget };
                match work {
                    LeaseWork::Renew => lease.fetch(key),
                    LeaseWork::Receive => lease.receive(key),
                }
            }
        }));
        Self { table, client, budget }
    }

    /// Returns whether the store is so far away that a decision should not wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.client.round_trip().as_nanos().saturating_mul(3) > self.budget.as_nanos()
    }
}

/// Shares the table and the client.
impl<R> Clone for Lease<R> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), client: Arc::clone(&self.client), budget: self.budget }
    }
}
