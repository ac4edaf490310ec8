//! Tenants that look at their own limits: on the HTTP port, with tokens that are scoped to their entries.

mod signing;
mod token;
mod tokens;

pub use self::{
    token::{TenantClaims, TenantEntry, TenantTokenError, TokenKeys},
    tokens::{TenantSettings, TenantTokens, read_keys},
};
