//! A queue worker that makes a provider's calls within the provider's limit: see `README.md`.

mod worker;

use std::{
    env,
    fs::File,
    io::{self, BufRead, BufReader},
};

use weir_client::Limiter;

#[tokio::main]
async fn main() -> Result<(), worker::Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (limits, provider, queue): (_, _, Box<dyn BufRead + Send>) = match &arguments[..] {
        [limits, provider] => (limits, provider, Box::new(BufReader::new(io::stdin()))),
        [limits, provider, file] => (limits, provider, Box::new(BufReader::new(File::open(file)?))),
        _ => return Err("usage: consumer LIMITS PROVIDER [FILE]".into()),
    };
    let limiter = Limiter::builder().rules_dir(limits).build().await?;
    let made = worker::work(limiter, provider, queue).await?;
    println!("{made} calls were made");
    Ok(())
}
