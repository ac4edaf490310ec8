//! Tenants that look at their own limits: on the HTTP port, with tokens that are scoped to their entries.

mod signing;
mod token;

pub use token::{TenantClaims, TenantEntry, TenantTokenError, TokenKeys};
