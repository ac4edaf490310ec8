//! A server in a case, and its workload.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{
    comparison::Kind,
    machine::{Cores, Machine},
    message::Workload,
    rules,
    server::{Server, Weir},
};

/// A server that can be started several times.
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) workload: Workload,
    program: Program,
}

enum Program {
    Comparison(Kind),
    Weir { rules: TempDir, variables: Vec<(&'static str, String)>, cores: Cores },
    Limitador { program: PathBuf, limits: TempDir, storage: Vec<String> },
}

impl Entrant {
    /// Returns a server that weir is compared with.
    pub(crate) fn comparison(kind: Kind, workload: Workload) -> Self {
        let name = match kind {
            Kind::H2 => "bare h2",
            Kind::H2Spawn => "bare h2, a task a request",
            Kind::Tonic => "tonic, doing nothing",
            Kind::TonicCurrentThread => "tonic, current-thread",
        };
        Self { name: name.into(), workload, program: Program::Comparison(kind) }
    }

    /// Returns weir on one processor with counters in memory; `more` is added to each `rate_limit`.
    pub(crate) fn weir(name: impl Into<String>, workload: Workload, more: &str) -> Self {
        let rules = rules::write(workload, more);
        Self {
            name: name.into(),
            workload,
            program: Program::Weir { rules, variables: Vec::new(), cores: Cores::One },
        }
    }

    /// Returns the limitador-server at `program` on one processor, with the same limits and the given storage
    /// arguments.
    pub(crate) fn limitador(program: &Path, workload: Workload, storage: &[&str]) -> Self {
        let program = Program::Limitador {
            program: program.to_owned(),
            limits: rules::write_limitador(workload),
            storage: storage.iter().map(|argument| (*argument).into()).collect(),
        };
        let name = format!("limitador, {}", storage[0]);
        Self { name, workload: Workload { limitador: true, ..workload }, program }
    }

    /// Sets an environment variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Program::Weir { variables, .. } = &mut self.program {
            variables.push((name, value.into()));
        }
        self
    }

    /// Sets the number of processors.
    pub(crate) fn on(mut self, count: Cores) -> Self {
        if let Program::Weir { cores, .. } = &mut self.program {
            *cores = count;
        }
        self
    }

    pub(crate) fn needs_redis(&self) -> bool {
        matches!(&self.program, Program::Weir { variables, .. } if variables.iter().any(|(name, _)| *name == "REDIS_URL"))
    }

    /// Starts the server. If `wrapper` is not empty, it is a program with arguments that runs the server.
    pub(crate) fn start(&self, machine: &Machine, wrapper: &[&str]) -> Server {
        match &self.program {
            Program::Comparison(kind) => {
                Server::comparison(machine, *kind, self.workload.shape.descriptors(), wrapper)
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
