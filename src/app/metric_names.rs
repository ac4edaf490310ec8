//! The names of metrics: those of envoyproxy/ratelimit's default mapping, or those of a mapper file.

use std::sync::Arc;

use weir_export::prometheus::{MetricNames, expression};

use crate::settings::Settings;

/// A bad mapper file is logged, and the default names stay: names must not keep the service from limiting.
pub(super) fn metric_names(settings: &Settings) -> MetricNames {
    let default = MetricNames::Reference(settings.time_unit);
    let Some(path) = &settings.prometheus_mapper else { return default };
    match weir_config::read_mapper(path, expression) {
        Ok((mapper, warnings)) => {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            MetricNames::Mapped(Arc::new(mapper))
        }
        Err(errors) => {
            for error in &errors.errors {
                tracing::error!("{error}");
            }
            tracing::error!("PROMETHEUS_MAPPER_YAML is not used; metrics keep their default names");
            default
        }
    }
}
