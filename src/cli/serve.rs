//! `weir serve`: resolves the settings, starts the service, and handles signals.

use std::{error::Error, io, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Level;
use weir::{
    app::{App, Reload},
    settings::{self, Flags, ServiceEnvironment, Settings},
};
use weir_export::log::{self, LogFormat};

use super::arguments::warn_of_ignored;

const REST: &str = "
Signals:
  SIGTERM, SIGINT  stop gracefully; a second one stops immediately
  SIGHUP           reload the rules

Examples:
  weir                                     serve the rules of ./config
  weir serve --config /etc/weir --log-level info
  REDIS_URL=redis:6379 weir serve          share the counts through Redis
  WEIR_DATA_DIR=/var/lib/weir weir serve   keep the counts across restarts
  weir check /etc/weir
  weir call --domain shop hello=world";

/// The variables, signals and examples.
pub(super) fn help() -> String {
    settings::help() + REST
}

pub(super) fn run(flags: &Flags, ignored: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let settings = Settings::resolve(flags, &ServiceEnvironment::read()?)?;
    log::init(settings.log.level, settings.log.format)?;
    warn_of_ignored(ignored);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(settings));
    // nothing is left to do but work that cannot be cancelled, such as a look-up of a name
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(settings: Settings) -> Result<(), Box<dyn Error>> {
    let format = settings.log.format;
    // first, so that a signal during the start stops the service gracefully
    let mut signals = Signals::new()?;
    let app = tokio::select! {
        app = App::bind(settings) => app?,
        // the start may wait for Redis
        () = signals.stop() => return Ok(()),
    };
    // at every log level: users and scripts need the addresses
    let addresses = app.addresses();
    log::print(format, Level::INFO, "listening", &addresses.named());
    let shutdown = signals.until_stop(app.reload(), format);
    app.run(shutdown).await?;
    Ok(())
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Reloads the rules on each SIGHUP, until SIGTERM or SIGINT. A second one of those exits immediately.
    async fn until_stop(mut self, reload: Reload, format: LogFormat) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                _ = self.hang_up.recv() => reload.now(),
            }
        }
        tokio::spawn(async move {
            self.stop().await;
            log::print(format, Level::INFO, "stopped immediately", &[]);
            std::process::exit(1);
        });
    }
}
