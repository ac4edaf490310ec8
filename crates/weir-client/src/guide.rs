//! The library in one page: a limit for each key, tiers, callers that wait, requests in flight, and reservations.
//!
//! # A limit for each key
//!
//! Rules say what is limited. Each value of `tenant` has a counter of its own here, which admits a hundred hits in any
//! second:
//!
//! ```
//! use weir_client::{Limiter, limit::Hits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let rules = "
//! domain: shop
//! descriptors:
//!   - key: tenant
//!     rate_limit: { requests: 100, per: 1s, algorithm: sliding_window }
//! ";
//! let limiter = Limiter::builder().rules_text(rules).build().await?;
//! // finds the rule once; asked again and again, it costs a fraction of a request
//! let acme = limiter.key("shop", &[("tenant", "acme")])?;
//! for _ in 0..100 {
//!     acme.try_acquire(Hits(1))?;
//! }
//! let rejected = acme.try_acquire(Hits(1)).expect_err("the hundred are used");
//! println!("{rejected}");
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! The rules may be in files instead ([`Builder::rules_dir`](crate::Builder::rules_dir)), in the language of
//! the service, and reload while callers wait. A key notices that.
//!
//! # Tiers
//!
//! A rule with several tiers admits a hit if all of them do, and counts it in all or in none:
//!
//! ```
//! use std::time::Duration;
//!
//! use weir_client::{Limiter, limit::Hits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let rules = "
//! domain: partners
//! descriptors:
//!   - key: api
//!     rate_limit:
//!       tiers:
//!         - { requests: 3, per: 100ms }
//!         - { requests: 5, per: 1h, algorithm: token_bucket }
//! ";
//! let limiter = Limiter::builder().rules_text(rules).build().await?;
//! let api = limiter.key("partners", &[("api", "stickers")])?;
//! // the fourth waits for the next window of 100 ms
//! for _ in 0..5 {
//!     api.acquire(Hits(1), Duration::from_secs(1)).await?;
//! }
//! // the sixth would have to wait for a token, for minutes: it is told so at once
//! assert!(api.acquire(Hits(1), Duration::from_secs(1)).await.is_err());
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Requests in flight
//!
//! A rule may limit the requests that run at the same time. Each has a permit, and ends when that is dropped:
//!
//! ```
//! use std::time::Duration;
//!
//! use weir_client::{Limiter, limit::Hits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let rules = "
//! domain: partners
//! descriptors:
//!   - key: api
//!     rate_limit: { in_flight: 1 }
//! ";
//! let limiter = Limiter::builder().rules_text(rules).build().await?;
//! let api = limiter.key("partners", &[("api", "stickers")])?;
//! let first = api.try_acquire(Hits(1))?;
//! assert!(api.try_acquire(Hits(1)).is_err());
//! drop(first);
//! // the next one would wait for its end
//! let second = api.acquire(Hits(1), Duration::from_secs(1)).await?;
//! println!("waited {:?}", second.waited());
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! Under a rule with `reserve`, a permit that is dropped costs what it has reserved;
//! [`Permit::settle`](crate::Permit::settle) says another cost.
//!
//! # Reservations
//!
//! Who needs many hits takes some in advance, uses them as it goes, and returns the rest.
//! [`Permit::give_back`](crate::Permit::give_back) does that for one caller. Below the client, a store reserves
//! between the fewest and the most hits that are of use, for a time:
//!
//! ```
//! use weir_client::{
//!     limit::{
//!         Descriptor, Domain, Entry, Hits, KeyHasher, Limit, Matched, OverLimitPolicy, Period,
//!         Request, ReservationRequest, Rule, RuleNode, RuleSet, Tier, Tiers, Timestamp, Values,
//!     },
//!     store::{MemoryStore, Store as _},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let tier = Tier::fixed_window(100, Period::from_secs(60));
//! let limit = Limit::Tiers { tiers: Tiers::from_iter([tier]), over_limit_policy: OverLimitPolicy::Ignore };
//! let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("job", Values::Any) };
//! let rules = RuleSet::new(&[Domain::new("batch", vec![node])], KeyHasher::random());
//!
//! let store = MemoryStore::new(1_000);
//! let entry = Entry { key: "job", value: "resize" };
//! let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
//! let request = Request { domain: "batch", descriptors: [descriptor].into_iter().collect(), hits: 1 };
//! let matched = Matched::new(&rules, &request);
//!
//! let now = Timestamp::from_secs(1_800_000_000);
//! let wanted = ReservationRequest { least: Hits(10), want: Hits(80), hold: Period::from_secs(30) };
//! let reserved = store.reserve(&matched.checks[0], wanted, now).await?;
//! assert_eq!(reserved.hits, Hits(80));
//! // 50 were of use
//! store.release(&matched.checks[0], reserved, Hits(30), now).await?;
//! let rest = store.reserve(&matched.checks[0], wanted, now).await?;
//! assert_eq!(rest.hits, Hits(50));
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Next
//!
//! - [`client`](crate): permits, deadlines, and the layer of tower.
//! - [`limit`](weir_limit): the pure core, without I/O and clock.
//! - [`store`](weir_store): in memory, on disk, and in front of Redis or Memcached, shared by many instances.
