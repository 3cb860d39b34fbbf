use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use hoplite_core::id::IdError;
use hoplite_core::metadata::MAX_REPLICAS;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::topology::place::contradiction;
use hoplite_core::{ClusterId, Limits, NodeId, Version};
use hoplite_daemon::http::HttpAddress;
use hoplite_daemon::{Group, MemoryLimits, NotASize, NotLoopback, Security, Size, TimeSpan, User};
use hoplite_directory::DEFAULT_CLUSTER;
use hoplite_net::SecurityError;
use hoplite_proto::bounds::{MAX_LABEL_KEY_BYTES, MAX_LABEL_VALUE_BYTES, MAX_LABELS};
use hoplite_proto::socket_path::default_socket_path;
use hoplite_shm::Backing;
use hoplite_store::{ClientRules, Directory, LinkSettings, Prefault, SpillSettings, StoreConfig};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DEFAULT_SOCKET_MODE: u32 = 0o660;
/// As for Ray's object store, so that both stores fit.
const DEFAULT_MEMORY_PERCENT: u64 = 30;

/// The settings. Unset fields have defaults.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(crate) struct Settings {
    /// Address for other stores to reach this one, or one for each network card, in the same order
    /// at every store; port 0 for any [default: none for a store without peers, else 127.0.0.1:0]
    #[arg(long, env = "HOPLITE_LISTEN", value_name = "ADDR:PORT,...", value_delimiter = ',')]
    listen: Option<Vec<SocketAddr>>,
    /// Addresses to report to other stores, if they differ from --listen; names are looked up again
    /// before each session with a shard
    #[arg(long, env = "HOPLITE_ADVERTISE", value_name = "HOST:PORT,...", value_delimiter = ',')]
    advertise: Option<Vec<String>>,
    /// All shards of the directory, spelled alike at every store; without it, one runs inside this
    /// store
    #[arg(long, env = "HOPLITE_DIRECTORY", value_name = "HOST:PORT,...", value_delimiter = ',')]
    directory: Option<Vec<String>>,
    /// Address of the directory inside this store, so that other stores can join [default:
    /// 127.0.0.1:0 with --listen or --advertise, else none]
    #[arg(long, env = "HOPLITE_DIRECTORY_LISTEN", value_name = "ADDR:PORT")]
    directory_listen: Option<SocketAddr>,
    /// Serve the dashboard of the directory inside this store for browsers: on a port of loopback,
    /// or on the address named; of several, on the first that no other program has. Users log in
    /// with the token [default: no dashboard]
    #[arg(long, env = "HOPLITE_DASHBOARD", value_name = "[ADDR:]PORT,...", value_delimiter = ',')]
    dashboard: Option<Vec<HttpAddress>>,
    /// Unix socket for the workers of this node [default: in $XDG_RUNTIME_DIR/hoplite or
    /// /tmp/hoplite-UID]
    #[arg(long, env = "HOPLITE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Permissions of the socket, octal [default: 660]
    #[arg(long, env = "HOPLITE_SOCKET_MODE", value_name = "MODE")]
    socket_mode: Option<String>,
    /// Owner of the socket, by name or number [default: the user of the process]
    #[arg(long, env = "HOPLITE_SOCKET_OWNER", value_name = "USER")]
    socket_owner: Option<User>,
    /// Group of the socket, by name or number [default: the group of the process]
    #[arg(long, env = "HOPLITE_SOCKET_GROUP", value_name = "GROUP")]
    socket_group: Option<Group>,
    /// Allow only these users, by name or number, and members of --allow-groups as clients
    /// [default: all users with access to the socket]
    #[arg(long, env = "HOPLITE_ALLOW_USERS", value_name = "USER,...", value_delimiter = ',')]
    allow_users: Option<Vec<User>>,
    /// Allow only members of these groups, by name or number, and --allow-users as clients
    /// [default: all users with access to the socket]
    #[arg(long, env = "HOPLITE_ALLOW_GROUPS", value_name = "GROUP,...", value_delimiter = ',')]
    allow_groups: Option<Vec<Group>>,
    /// Allow these users, by name or number, to read only
    #[arg(long, env = "HOPLITE_READ_ONLY_USERS", value_name = "USER,...", value_delimiter = ',')]
    read_only_users: Option<Vec<User>>,
    /// Size of the shared memory, such as 64GiB [default: 30% of the memory that this process may
    /// use]
    #[arg(long, env = "HOPLITE_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,
    /// Use huge pages for the shared memory: of the machine's default size, or of the size named,
    /// such as 1GiB. They must be reserved (vm.nr_hugepages) [default: pages of the usual size]
    #[arg(
        long, env = "HOPLITE_HUGE_PAGES", value_name = "SIZE",
        num_args = 0..=1, require_equals = true, default_missing_value = "default"
    )]
    huge_pages: Option<HugePages>,
    /// Deprecated, use --huge-pages: no file is made. Below a hugetlbfs, the shared memory uses
    /// huge pages of its page size; below a tmpfs, pages of the usual size
    #[arg(long, env = "HOPLITE_ARENA_FILE", value_name = "PATH", hide = true)]
    arena_file: Option<PathBuf>,
    /// Leave the shared memory untouched at the start: less memory is in use, and first puts are
    /// slower
    #[arg(
        long, env = "HOPLITE_NO_PREFAULT", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    no_prefault: Option<bool>,
    /// Name of this node, unique in the cluster [default: host name and process id]
    #[arg(long, env = "HOPLITE_NODE_ID", value_name = "NAME")]
    node_id: Option<String>,
    /// Newest version of the protocol to speak with other programs, for example to keep a cluster
    /// on one version during an upgrade [default: the newest that this program knows]
    #[arg(long, env = "HOPLITE_NEWEST_VERSION", value_name = "NUMBER")]
    newest_version: Option<Version>,
    /// Name of the cluster; daemons of other clusters are refused [default: hoplite]
    #[arg(long, env = "HOPLITE_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// Place of this node, outermost first by the keys zone, pod, rack and host, as in
    /// zone=a,rack=7: stores prefer close senders. The directory shows labels with other keys too
    #[arg(long, env = "HOPLITE_LABELS", value_name = "KEY=VALUE,...", value_delimiter = ',')]
    labels: Option<Vec<String>>,
    #[command(flatten)]
    security: Security,
    /// Largest object [default: 1TiB, and never more than the shared memory]
    #[arg(long, env = "HOPLITE_MAX_OBJECT", value_name = "SIZE")]
    max_object: Option<Size>,
    /// Keep smaller objects in the directory too, which answers gets of them [default: 8KiB; at
    /// most 1MiB]
    #[arg(long, env = "HOPLITE_INLINE_BELOW", value_name = "SIZE")]
    inline_below: Option<Size>,
    /// Put smaller objects without waiting for the directory, unless the caller requests that; the
    /// store announces them when they are complete [default: 64KiB; at most 1MiB]
    #[arg(long, env = "HOPLITE_CONFIRM_FROM", value_name = "SIZE")]
    confirm_from: Option<Size>,
    /// Most copies in this store [default: 1048576]
    #[arg(long, env = "HOPLITE_MAX_OBJECTS", value_name = "COUNT")]
    max_objects: Option<usize>,
    /// Most clients connected at once [default: 1024]
    #[arg(long, env = "HOPLITE_MAX_CLIENTS", value_name = "COUNT")]
    max_clients: Option<usize>,
    /// Most open calls of one client [default: 4096]
    #[arg(long, env = "HOPLITE_MAX_CALLS", value_name = "COUNT")]
    max_calls: Option<usize>,
    /// Most objects that one client refers to at once [default: 65536]
    #[arg(long, env = "HOPLITE_MAX_REFERENCES", value_name = "COUNT")]
    max_references: Option<usize>,
    /// Most ids that the open deletes and waits of one client name together [default: 65536]
    #[arg(long, env = "HOPLITE_MAX_IDS", value_name = "COUNT")]
    max_ids: Option<usize>,
    /// Time that a store may be away before its copies count as lost; for the directory inside this
    /// store [default: 1s]
    #[arg(long, env = "HOPLITE_NODE_GRACE", value_name = "DURATION")]
    node_grace: Option<TimeSpan>,
    /// Time after which the objects of an owner are deleted, once no client holds the owner
    /// [default: 30s]
    #[arg(long, env = "HOPLITE_OWNER_GRACE", value_name = "DURATION")]
    owner_grace: Option<TimeSpan>,
    /// Bandwidth of one stream to another store, in bytes per second, for the planning of reduces
    /// [default: measured]
    #[arg(long, env = "HOPLITE_LINK_BANDWIDTH", value_name = "SIZE")]
    link_bandwidth: Option<Size>,
    /// One-way latency to another store, for the planning of reduces [default: measured]
    #[arg(long, env = "HOPLITE_LINK_LATENCY", value_name = "DURATION")]
    link_latency: Option<TimeSpan>,
    /// Most connections of one large transfer, 1 to 64. With more than 1, the store adds
    /// connections while they make the transfer faster, as where the network caps single
    /// connections [default: the number of network cards]
    #[arg(long, env = "HOPLITE_LANES", value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    lanes: Option<u8>,
    /// Schedule of the allreduces that this store coordinates: auto picks the one with the shortest
    /// expected time. The others are for comparison: ring, halving-doubling, hdrm, hierarchical;
    /// hdrm and hierarchical need labels with fitting groups [default: auto]
    #[arg(long, env = "HOPLITE_ALLREDUCE_SCHEDULE", value_name = "NAME")]
    allreduce_schedule: Option<AllreduceSchedule>,
    /// Directory on a disk for objects that the shared memory has no room for. Repeat the flag for
    /// several disks [default: none, a full store lets puts wait]
    #[arg(long, env = "HOPLITE_SPILL_DIR", value_name = "DIR", value_delimiter = ',')]
    spill_dir: Option<Vec<PathBuf>>,
    /// Most bytes of the files in all --spill-dir together [default: no limit, but
    /// each disk keeps 5% free, at most 1GiB]
    #[arg(long, env = "HOPLITE_SPILL_LIMIT", value_name = "SIZE")]
    spill_limit: Option<Size>,
    /// Recover the spilled objects of a store that was killed, if it had this flag, too [default:
    /// remove its files]
    #[arg(
        long, env = "HOPLITE_RECOVER", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    recover: Option<bool>,
    /// Before the store stops, move its objects to other stores for up to this time. Objects that
    /// cannot be moved are logged, and lost [default: stop at once]
    #[arg(long, env = "HOPLITE_DRAIN", value_name = "DURATION")]
    drain: Option<TimeSpan>,
    /// Keep this number of copies of each object on different nodes, unless its put says another
    /// number [default: 1; at most 64]
    #[arg(long, env = "HOPLITE_REPLICAS", value_name = "COUNT")]
    replicas: Option<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, clap::ValueEnum)]
enum AllreduceSchedule {
    #[default]
    Auto,
    Ring,
    HalvingDoubling,
    Hdrm,
    Hierarchical,
}

impl From<AllreduceSchedule> for SchedulePreference {
    fn from(schedule: AllreduceSchedule) -> Self {
        match schedule {
            AllreduceSchedule::Auto => Self::Auto,
            AllreduceSchedule::Ring => Self::Ring,
            AllreduceSchedule::HalvingDoubling => Self::HalvingDoubling,
            AllreduceSchedule::Hdrm => Self::Hdrm,
            AllreduceSchedule::Hierarchical => Self::Hierarchical,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HugePages {
    None,
    OfDefaultSize,
    Of(Size),
}

impl FromStr for HugePages {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        match text {
            // In a variable or a file, a flag without a value is `true`.
            "default" | "true" => Ok(Self::OfDefaultSize),
            "false" => Ok(Self::None),
            size => size.parse().map(Self::Of),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error(transparent)]
    Name(#[from] IdError),
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error("--huge-pages and --arena-file, which it replaces, exclude each other")]
    TwoBackings,
    #[error("--arena-file cannot be used; use --huge-pages instead")]
    ArenaFile(#[source] hoplite_shm::Error),
    #[error("{text:?} is not a file mode in octal digits")]
    SocketMode { text: String },
    #[error(
        "{text:?} is not a label of the form KEY=VALUE, with a key of 1 to {MAX_LABEL_KEY_BYTES} \
         bytes and a value of up to {MAX_LABEL_VALUE_BYTES}"
    )]
    Label { text: String },
    #[error("the label {key:?} is set more than once")]
    LabelTwice { key: String },
    #[error("the labels {} and {} contradict each other", .labels[0], .labels[1])]
    LabelsContradict { labels: [String; 2] },
    #[error("a node has up to {MAX_LABELS} labels")]
    TooManyLabels,
    #[error(
        "--directory and --directory-listen exclude each other: the directory is elsewhere or in \
         this store"
    )]
    TwoDirectories,
    #[error(
        "--dashboard needs a directory inside this store; otherwise set it at hoplite-directory itself"
    )]
    NoDashboard,
    #[error("--inline-below and --confirm-from are 1MiB at most, not {size_bytes} bytes")]
    SmallTooLarge { size_bytes: u64 },
    #[error("{name} must be at least 1")]
    Zero { name: &'static str },
    #[error("{name} needs a --spill-dir")]
    NoSpillDir { name: &'static str },
    #[error("an object has 1 to {MAX_REPLICAS} replicas, not {replicas}")]
    Replicas { replicas: u8 },
}

impl Settings {
    pub(crate) fn resolve(self) -> Result<StoreConfig, SettingsError> {
        let limits = self.limits()?;
        let is_alone = self.listen.is_none()
            && self.advertise.is_none()
            && self.directory.is_none()
            && self.directory_listen.is_none();
        let any_port = || vec![SocketAddr::new(LOOPBACK, 0)];
        let listen = if is_alone { Vec::new() } else { self.listen.unwrap_or_else(any_port) };
        listen.iter().try_for_each(|address| self.security.check(*address))?;
        let dashboard: Vec<_> =
            self.dashboard.unwrap_or_default().into_iter().map(|address| address.0).collect();
        dashboard.iter().try_for_each(|address| self.security.check(*address))?;
        let has_dashboard = !dashboard.is_empty();
        let directory = match (self.directory, self.directory_listen) {
            (Some(_), Some(_)) => return Err(SettingsError::TwoDirectories),
            (Some(_), None) if has_dashboard => return Err(SettingsError::NoDashboard),
            (Some(shards), None) => Directory::Shards(shards),
            (None, listen) => {
                let listen = (!is_alone).then(|| listen.unwrap_or(SocketAddr::new(LOOPBACK, 0)));
                listen.map_or(Ok(()), |address| self.security.check(address))?;
                Directory::Embedded { listen, dashboard }
            }
        };
        let socket_mode = self.socket_mode.map_or(Ok(DEFAULT_SOCKET_MODE), socket_mode)?;
        let labels = labels(self.labels.unwrap_or_default())?;
        let backing = backing(self.huge_pages.unwrap_or(HugePages::None), self.arena_file)?;
        Ok(StoreConfig {
            node: NodeId::new(&self.node_id.unwrap_or_else(default_node_id))?,
            cluster: ClusterId::new(self.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER))?,
            newest_version: self.newest_version.unwrap_or_default(),
            listen,
            credentials: match is_alone && !has_dashboard {
                true => self.security.named_credentials()?,
                false => self.security.credentials()?,
            },
            advertise: self.advertise.unwrap_or_default(),
            directory,
            socket: self.socket.unwrap_or_else(default_socket_path),
            socket_mode,
            socket_owner: self.socket_owner.map(|user| user.0),
            socket_group: self.socket_group.map(|group| group.0),
            clients: ClientRules {
                users: self.allow_users.map(numbers),
                groups: self
                    .allow_groups
                    .map(|groups| groups.into_iter().map(|group| group.0).collect()),
                readers: self.read_only_users.map(numbers).unwrap_or_default(),
            },
            memory_bytes: self.memory.map_or_else(default_memory_bytes, |size| size.0),
            backing,
            prefault: if self.no_prefault == Some(true) {
                Prefault::OnUse
            } else {
                Prefault::AtStart
            },
            links: LinkSettings {
                bytes_per_second: self.link_bandwidth.map(|size| size.0),
                latency: self.link_latency.map(|span| span.0),
                max_lanes: self.lanes.map(usize::from),
            },
            allreduce_schedule: self.allreduce_schedule.unwrap_or_default().into(),
            spill: spill(self.spill_dir, self.spill_limit, self.recover == Some(true))?,
            drain: self.drain.map(|span| span.0),
            replicas: replicas(self.replicas)?,
            labels,
            limits,
            tracer: None,
        })
    }

    fn limits(&self) -> Result<Limits, SettingsError> {
        let default = Limits::default();
        let small = |set: Option<Size>, default| match set {
            Some(size) if size.0 > hoplite_proto::bounds::MAX_INLINE_BYTES as u64 => {
                Err(SettingsError::SmallTooLarge { size_bytes: size.0 })
            }
            set => Ok(set.map_or(default, |size| size.0)),
        };
        let positive = |name, set: Option<usize>, default| match set {
            Some(0) => Err(SettingsError::Zero { name }),
            set => Ok(set.unwrap_or(default)),
        };
        Ok(Limits {
            max_object_bytes: self.max_object.map_or(default.max_object_bytes, |size| size.0),
            inline_below_bytes: small(self.inline_below, default.inline_below_bytes)?,
            confirmed_from_bytes: small(self.confirm_from, default.confirmed_from_bytes)?,
            max_objects: positive("max-objects", self.max_objects, default.max_objects)?,
            max_clients: positive("max-clients", self.max_clients, default.max_clients)?,
            max_requests_per_client: positive(
                "max-calls",
                self.max_calls,
                default.max_requests_per_client,
            )?,
            max_references_per_client: positive(
                "max-references",
                self.max_references,
                default.max_references_per_client,
            )?,
            max_ids_per_request: positive("max-ids", self.max_ids, default.max_ids_per_request)?,
            node_grace: self.node_grace.map_or(default.node_grace, |span| span.0),
            owner_grace: self.owner_grace.map_or(default.owner_grace, |span| span.0),
            ..default
        })
    }
}

fn socket_mode(text: String) -> Result<u32, SettingsError> {
    u32::from_str_radix(&text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or(SettingsError::SocketMode { text })
}

fn backing(pages: HugePages, file: Option<PathBuf>) -> Result<Backing, SettingsError> {
    match (pages, file) {
        (HugePages::None, None) => Ok(Backing::Pages),
        (HugePages::None, Some(path)) => {
            Backing::of_file_at(&path).map_err(SettingsError::ArenaFile)
        }
        (HugePages::OfDefaultSize, None) => Ok(Backing::HugePages { page_bytes: None }),
        (HugePages::Of(Size(page_bytes)), None) => {
            Ok(Backing::HugePages { page_bytes: Some(page_bytes) })
        }
        (_, Some(_)) => Err(SettingsError::TwoBackings),
    }
}

fn spill(
    directories: Option<Vec<PathBuf>>,
    limit: Option<Size>,
    recover: bool,
) -> Result<SpillSettings, SettingsError> {
    let directories = directories.unwrap_or_default();
    let unused = [("--spill-limit", limit.is_some()), ("--recover", recover)];
    if let Some((name, _)) = unused.iter().find(|(_, is_set)| directories.is_empty() && *is_set) {
        return Err(SettingsError::NoSpillDir { name });
    }
    Ok(SpillSettings { directories, limit_bytes: limit.map(|size| size.0), recover })
}

fn replicas(set: Option<u8>) -> Result<u8, SettingsError> {
    match set.unwrap_or(1) {
        replicas @ 1..=MAX_REPLICAS => Ok(replicas),
        replicas => Err(SettingsError::Replicas { replicas }),
    }
}

fn numbers(users: Vec<User>) -> Vec<u32> {
    users.into_iter().map(|user| user.0).collect()
}

fn labels(texts: Vec<String>) -> Result<Vec<(String, String)>, SettingsError> {
    if texts.len() > MAX_LABELS {
        return Err(SettingsError::TooManyLabels);
    }
    let mut labels = BTreeMap::new();
    for text in texts {
        let pair = text.split_once('=').filter(|(key, value)| {
            (1..=MAX_LABEL_KEY_BYTES).contains(&key.len()) && value.len() <= MAX_LABEL_VALUE_BYTES
        });
        let Some((key, value)) = pair else { return Err(SettingsError::Label { text }) };
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(SettingsError::LabelTwice { key: key.to_owned() });
        }
    }
    let labels: Vec<(String, String)> = labels.into_iter().collect();
    match contradiction(&labels) {
        None => Ok(labels),
        Some(pair) => Err(SettingsError::LabelsContradict {
            labels: pair.map(|(key, value)| format!("{key}={value}")),
        }),
    }
}

/// Made from host name and process id: differs between stores and between runs.
fn default_node_id() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let allowed =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' };
    let host: String = host.chars().map(allowed).take(48).collect();
    format!("{host}-{}", std::process::id())
}

fn default_memory_bytes() -> u64 {
    MemoryLimits::read().share_for_arena(DEFAULT_MEMORY_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_set_means_a_working_single_node() {
        let store = Settings::default().resolve().unwrap();
        assert_eq!(store.directory, Directory::Embedded { listen: None, dashboard: Vec::new() });
        assert_eq!(store.listen, [], "it has no peers");
        assert!(store.memory_bytes > 64 << 20);
        assert_eq!(store.limits, Limits::default());
        assert_eq!(store.socket_mode, 0o660);
    }

    #[test]
    fn a_listener_outside_loopback_needs_a_flag() {
        let open = Settings {
            listen: Some(vec!["127.0.0.1:7400".parse().unwrap(), "0.0.0.0:7400".parse().unwrap()]),
            ..Settings::default()
        };
        assert!(matches!(open.clone().resolve(), Err(SettingsError::NotLoopback(_))));
        assert!(
            Settings { security: Security { insecure: Some(true), ..Security::default() }, ..open }
                .resolve()
                .is_ok()
        );
        let directory =
            Settings { directory_listen: "[::]:7401".parse().ok(), ..Settings::default() };
        assert!(matches!(directory.resolve(), Err(SettingsError::NotLoopback(_))));
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |settings: Settings| settings.resolve().is_err();
        assert!(refused(Settings { socket_mode: Some("rw".to_owned()), ..Settings::default() }));
        assert!(refused(Settings { socket_mode: Some("7777".to_owned()), ..Settings::default() }));
        assert!(refused(Settings { labels: Some(vec!["rack".to_owned()]), ..Settings::default() }));
        assert!(refused(Settings { node_id: Some("a b".to_owned()), ..Settings::default() }));
        assert!(refused(Settings { max_clients: Some(0), ..Settings::default() }));
        for replicas in [0, 65] {
            assert!(refused(Settings { replicas: Some(replicas), ..Settings::default() }));
        }
        assert!(refused(Settings { spill_limit: Some(Size(1)), ..Settings::default() }));
        assert!(refused(Settings { recover: Some(true), ..Settings::default() }));
        assert!(refused(Settings { inline_below: Some(Size(2 << 20)), ..Settings::default() }));
        assert!(refused(Settings {
            directory: Some(vec!["a:1".to_owned()]),
            directory_listen: "127.0.0.1:0".parse().ok(),
            ..Settings::default()
        }));
        assert!(refused(Settings {
            directory: Some(vec!["a:1".to_owned()]),
            dashboard: Some(vec!["1".parse().unwrap()]),
            ..Settings::default()
        }));
    }

    #[test]
    fn memory_is_made_of_the_pages_that_are_asked_for() {
        let backing = |settings: Settings| settings.resolve().map(|store| store.backing);
        let huge = |text: &str| Settings { huge_pages: text.parse().ok(), ..Settings::default() };
        assert_eq!(backing(Settings::default()).unwrap(), Backing::Pages);
        assert_eq!(backing(huge("false")).unwrap(), Backing::Pages);
        for default in ["default", "true"] {
            assert_eq!(backing(huge(default)).unwrap(), Backing::HugePages { page_bytes: None });
        }
        assert_eq!(
            backing(huge("1GiB")).unwrap(),
            Backing::HugePages { page_bytes: Some(1 << 30) }
        );
        assert!("much".parse::<HugePages>().is_err());
        let file = |path: &str| Settings { arena_file: Some(path.into()), ..Settings::default() };
        assert_eq!(backing(file("/dev/shm/arena")).unwrap(), Backing::Pages);
        assert!(matches!(backing(file("/proc/arena")), Err(SettingsError::ArenaFile(_))));
        let both = Settings { huge_pages: "1GiB".parse().ok(), ..file("/dev/shm/arena") };
        assert!(matches!(backing(both), Err(SettingsError::TwoBackings)));
    }

    #[test]
    fn labels_are_pairs_with_different_keys() {
        let resolved = |labels: &[&str]| {
            let labels = Some(labels.iter().map(|label| (*label).to_owned()).collect());
            Settings { labels, ..Settings::default() }.resolve().map(|store| store.labels)
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            resolved(&["zone=a=b", "rack="]).unwrap(),
            [pair("rack", ""), pair("zone", "a=b")]
        );
        assert!(
            matches!(resolved(&["rack=7", "rack=8"]), Err(SettingsError::LabelTwice { key }) if key == "rack")
        );
        assert_eq!(
            resolved(&["zone=a", "topology.kubernetes.io/zone=b"]).unwrap_err().to_string(),
            "the labels topology.kubernetes.io/zone=b and zone=a contradict each other"
        );
        assert!(resolved(&["zone=a", "topology.kubernetes.io/zone=a"]).is_ok());
        for wrong in
            ["rack", "=7", &format!("{}=7", "k".repeat(64)), &format!("rack={}", "7".repeat(256))]
        {
            assert!(matches!(resolved(&[wrong]), Err(SettingsError::Label { .. })), "{wrong}");
        }
        let many: Vec<String> = (0..33).map(|number| format!("k{number}=")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(resolved(&many[1..]).is_ok());
        assert!(matches!(resolved(&many), Err(SettingsError::TooManyLabels)));
    }
}
