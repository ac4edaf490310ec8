#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandAction {
    Rl(RlCommand),
    Throttle(ReplyDialect),
    Rules(RuleCommand),
    Buckets(BucketCommand),
    Client(ClientCommand),
    Transaction(TransactionCommand),
    Command,
    Info,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RlCommand {
    pub(super) takes: bool,
    pub(super) has_session: bool,
    pub(super) in_millis: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyDialect {
    RedisCell,
    Throttlecrab,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketCommand {
    Delete,
    Exists,
    Ttl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleCommand {
    Take,
    Peek,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientCommand {
    Ping,
    Echo,
    Auth,
    Hello,
    Client,
    Select,
    Quit,
    Unwatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionCommand {
    Multi,
    Exec,
    Discard,
    Watch,
    Reset,
}

// === impl RuleCommand ===

impl RuleCommand {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Take => "WEIR.TAKE",
            Self::Peek => "WEIR.PEEK",
            Self::Reset => "WEIR.RESET",
        }
    }
}

// === impl CommandAction ===

impl CommandAction {
    /// Whether its first argument is a key; all of them, if it accepts any number.
    pub(super) const fn has_key(self) -> bool {
        matches!(self, Self::Rl(_) | Self::Throttle(_) | Self::Buckets(_))
    }

    pub(super) const fn is_readonly(self) -> bool {
        !matches!(
            self,
            Self::Rl(RlCommand { takes: true, .. })
                | Self::Throttle(_)
                | Self::Buckets(BucketCommand::Delete)
        )
    }

    /// Returns whether a client may send it before it has authenticated.
    pub(super) const fn is_before_auth(self) -> bool {
        matches!(
            self,
            Self::Client(ClientCommand::Auth | ClientCommand::Hello | ClientCommand::Quit)
                | Self::Transaction(TransactionCommand::Reset)
        )
    }

    /// Returns whether it is carried out at once during a transaction.
    pub(super) const fn is_at_once(self) -> bool {
        matches!(self, Self::Client(ClientCommand::Quit))
    }
}
