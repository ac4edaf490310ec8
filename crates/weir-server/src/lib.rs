//! The servers. Each decodes its protocol into a [`Request`](weir_limit::Request), and encodes the
//! [`Verdict`](weir_limit::Verdict) into a response.

/// Declares the values of a label of metrics, with `ALL` of them and the `name` of each.
macro_rules! named {
    ($(#[$doc:meta])* $visibility:vis enum $enum:ident { $($(#[$of:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $enum {
            $($(#[$of])* $value,)*
        }

        impl $enum {
            const ALL: &[Self] = &[$(Self::$value),*];

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
    };
}

mod answer;
pub mod bounds;
mod connections;
mod field_writer;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod grpc;
pub mod headers;
pub mod health;
pub mod http;
mod listening;
mod log;
pub mod net;
mod rejections;
mod request;
mod request_token;
pub mod resp;
mod wait;

pub use connections::Connections;
pub use health::Health;
pub use listening::Certificates;
pub use rejections::RejectionLogger;
