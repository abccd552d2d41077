//! The names of metrics, defined once. docs/serve.md lists them for users.
//!
//! Log fields, by the same rule one name for one thing: `address` (of a listener), `peer` (a
//! client), `export`, `disk`, `key` (of the configuration), `error` (a message).

/// Metrics. All carry the prefix `sojourn_`; counters end in `_total` where they are printed.
pub(crate) mod metric {
    pub(crate) const PREFIX: &str = "sojourn";
    pub(crate) const CONNECTIONS: &str = "connections";
    pub(crate) const CONNECTIONS_ACCEPTED: &str = "connections_accepted";
    pub(crate) const CONNECTIONS_REFUSED: &str = "connections_refused";
    pub(crate) const CONNECTION_FAULTS: &str = "connection_faults";
    pub(crate) const PANICS: &str = "panics";
    pub(crate) const REQUESTS: &str = "requests";
    pub(crate) const REQUEST_ERRORS: &str = "request_errors";
    pub(crate) const REQUEST_SECONDS: &str = "request_duration_seconds";
    pub(crate) const PACED: &str = "requests_held_back";
    pub(crate) const BUSY_POLLED: &str = "requests_busy_polled";
    pub(crate) const BUSY_POLL_SECONDS: &str = "busy_poll_seconds";
    pub(crate) const CLIENTS: &str = "clients";
    pub(crate) const READ_BYTES: &str = "read_bytes";
    pub(crate) const WRITTEN_BYTES: &str = "written_bytes";
    pub(crate) const CACHE_HITS: &str = "cache_hits";
    pub(crate) const CACHE_MISSES: &str = "cache_misses";
    pub(crate) const CACHE_EVICTIONS: &str = "cache_evictions";
    pub(crate) const CACHE_BYTES: &str = "cache_bytes";
    pub(crate) const CACHE_CAPACITY: &str = "cache_capacity_bytes";
    pub(crate) const CACHE_FORECAST: &str = "cache_forecast_hit_ratio";
    pub(crate) const STORE_READS: &str = "store_reads";
    pub(crate) const STORE_READ_BYTES: &str = "store_read_bytes";
    pub(crate) const STORE_FAILURES: &str = "store_failures";
    pub(crate) const STORE_MOVED: &str = "store_moved";
    pub(crate) const STORE_HEALED: &str = "store_healed";
    pub(crate) const SOURCE_CHUNKS: &str = "source_chunks";
    pub(crate) const SOURCE_READ_BYTES: &str = "source_read_bytes";
    pub(crate) const SOURCE_RESTING: &str = "source_resting";
    pub(crate) const STORE_RETRIES: &str = "store_retries";
    pub(crate) const STORE_GIVEN_UP: &str = "store_given_up";
    pub(crate) const PIECE_HITS: &str = "piece_hits";
    pub(crate) const PIECE_HIT_BYTES: &str = "piece_hit_bytes";
    pub(crate) const PIECE_MISSES: &str = "piece_misses";
    pub(crate) const PIECE_MISS_BYTES: &str = "piece_miss_bytes";
    pub(crate) const PIECES_DAMAGED: &str = "pieces_damaged";
    pub(crate) const PIECES_NOT_KEPT: &str = "pieces_not_kept";
    pub(crate) const PIECE_EVICTED_BYTES: &str = "piece_evicted_bytes";
    pub(crate) const HEAD_ROOM: &str = "head_room_clients";
    pub(crate) const OPEN_DISKS: &str = "open_disks";
    pub(crate) const PRIVATE_BYTES: &str = "private_bytes";
    pub(crate) const DISK_FULL: &str = "disk_full";
    pub(crate) const DISK_SLOW: &str = "disk_slow";
    pub(crate) const STORE_SLOW: &str = "store_slow";
    pub(crate) const THROTTLE_LATE: &str = "throttle_late";
    pub(crate) const THROTTLE_LATE_SECONDS: &str = "throttle_late_seconds";
    pub(crate) const GATEWAY_CONNECTIONS: &str = "gateway_connections";
    pub(crate) const GATEWAY_REQUESTS: &str = "gateway_requests";
    pub(crate) const GATEWAY_REFUSED: &str = "gateway_requests_refused";
    pub(crate) const GATEWAY_FAILED: &str = "gateway_requests_failed";
    pub(crate) const GATEWAY_SENT_BYTES: &str = "gateway_sent_bytes";
    pub(crate) const GATEWAY_RECEIVED_BYTES: &str = "gateway_received_bytes";
    pub(crate) const GATEWAY_WRITTEN: &str = "gateway_objects_written";
    pub(crate) const ISCSI_CONNECTIONS: &str = "iscsi_connections";
    pub(crate) const ISCSI_SESSIONS: &str = "iscsi_sessions";
    pub(crate) const ISCSI_REFUSED: &str = "iscsi_logins_refused";
    pub(crate) const ISCSI_COMMANDS: &str = "iscsi_commands";
    pub(crate) const ISCSI_READ_BYTES: &str = "iscsi_read_bytes";
    pub(crate) const ISCSI_WRITTEN_BYTES: &str = "iscsi_written_bytes";
    pub(crate) const ISCSI_BUSY_POLLED: &str = "iscsi_busy_polled";
    pub(crate) const VHOST_USER_CONNECTIONS: &str = "vhost_user_connections";
    pub(crate) const VHOST_USER_VIRTQUEUES: &str = "vhost_user_virtqueues";
    pub(crate) const VHOST_USER_REFUSED: &str = "vhost_user_connections_refused";
    pub(crate) const VHOST_USER_REQUESTS: &str = "vhost_user_requests";
    pub(crate) const VHOST_USER_BUSY_POLLED: &str = "vhost_user_busy_polled";
    pub(crate) const VHOST_USER_READ_BYTES: &str = "vhost_user_read_bytes";
    pub(crate) const VHOST_USER_WRITTEN_BYTES: &str = "vhost_user_written_bytes";

    /// The label that says which source of chunks.
    pub(crate) const SOURCE: &str = "source";
    /// The label that says what came of a request to a source.
    pub(crate) const OUTCOME: &str = "outcome";
    /// The label that says which export.
    pub(crate) const EXPORT: &str = "export";
    /// The label that says which cache policy.
    pub(crate) const POLICY: &str = "policy";
    /// The label that says how much memory.
    pub(crate) const MEMORY: &str = "memory";
    /// The label that says which request.
    pub(crate) const KIND: &str = "kind";
}
