//! Who takes part in a case, and what is asked of it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{
    comparison::Kind,
    machine::{Cores, Machine},
    message::Asked,
    rules,
    server::{Server, Weir},
};

/// A server that can be started as often as one likes.
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) asked: Asked,
    program: Program,
}

enum Program {
    Comparison(Kind),
    Weir { rules: TempDir, variables: Vec<(&'static str, String)>, cores: Cores },
    Limitador { program: PathBuf, limits: TempDir, storage: Vec<String> },
}

impl Entrant {
    /// What weir is compared with.
    pub(crate) fn comparison(kind: Kind, asked: Asked) -> Self {
        let name = match kind {
            Kind::H2 => "bare h2",
            Kind::H2Spawn => "bare h2, a task a request",
            Kind::Tonic => "tonic, doing nothing",
            Kind::TonicCurrentThread => "tonic, current-thread",
        };
        Self { name: name.into(), asked, program: Program::Comparison(kind) }
    }

    /// weir on one processor, counting in memory; `more` is put into each `rate_limit`.
    pub(crate) fn weir(name: impl Into<String>, asked: Asked, more: &str) -> Self {
        let rules = rules::write(asked, more);
        Self {
            name: name.into(),
            asked,
            program: Program::Weir { rules, variables: Vec::new(), cores: Cores::One },
        }
    }

    /// The limitador-server at `program` on one processor, with the storage of these arguments and the same limits.
    pub(crate) fn limitador(program: &Path, asked: Asked, storage: &[&str]) -> Self {
        let program = Program::Limitador {
            program: program.to_owned(),
            limits: rules::write_limitador(asked),
            storage: storage.iter().map(|argument| (*argument).into()).collect(),
        };
        let name = format!("limitador, {}", storage[0]);
        Self { name, asked: Asked { limitador: true, ..asked }, program }
    }

    /// The same with a variable set.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Program::Weir { variables, .. } = &mut self.program {
            variables.push((name, value.into()));
        }
        self
    }

    /// The same on so many processors.
    pub(crate) fn on(mut self, count: Cores) -> Self {
        if let Program::Weir { cores, .. } = &mut self.program {
            *cores = count;
        }
        self
    }

    pub(crate) fn needs_redis(&self) -> bool {
        matches!(&self.program, Program::Weir { variables, .. } if variables.iter().any(|(name, _)| *name == "REDIS_URL"))
    }

    /// Starts it; `wrapper` is a program that runs it, with its arguments, or nothing.
    pub(crate) fn start(&self, machine: &Machine, wrapper: &[&str]) -> Server {
        match &self.program {
            Program::Comparison(kind) => {
                Server::comparison(machine, *kind, self.asked.shape.descriptors(), wrapper)
            }
            Program::Weir { rules, variables, cores } => {
                let weir = Weir { rules: rules.path(), variables, cores: *cores };
                Server::weir(machine, &weir, wrapper)
            }
            Program::Limitador { program, limits, storage } => {
                Server::limitador(machine, program, limits.path(), storage, wrapper)
            }
        }
    }
}
