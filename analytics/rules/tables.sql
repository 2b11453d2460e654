-- What each table of the steps has, for those that are not made because they would have no rows (engine.py): to plan a
-- step takes DuckDB as long as to run it over a small log. A test holds this to what the steps make.
-- A table that begins with the columns of one before it is made of that one.

CREATE OR REPLACE TEMP TABLE buckets (key BIGINT, chain BIGINT, bucket_us BIGINT, client VARCHAR, named BOOLEAN,
    channel VARCHAR, place VARCHAR, family VARCHAR, n BIGINT, bytes_in BIGINT, bytes_out BIGINT, dur_us BIGINT,
    guard_ms BIGINT, closed BIGINT, waited BIGINT, distinct_seqs BIGINT, n_overload BIGINT, n_server_error BIGINT,
    n_not_found BIGINT, n_seq_missing BIGINT, n_rejected BIGINT, first_us BIGINT, last_us BIGINT, seq_lo BIGINT,
    seq_hi BIGINT, seq_bits BIGINT, head_lo BIGINT, head_hi BIGINT, conn_bits BIGINT, slots BIGINT,
    retry_after_ms BIGINT, nodes VARCHAR[], release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR, status_lo BIGINT,
    status_hi BIGINT, reason VARCHAR, request VARCHAR, blind VARCHAR, again BOOLEAN, next_again BOOLEAN,
    n_shared BIGINT, seqs BIGINT, row_hits BIGINT, kinds INTEGER, pause BIGINT, kinds_last INTEGER,
    kinds_before INTEGER, kinds_after INTEGER, peak_rps DOUBLE, busy_s DOUBLE, another BOOLEAN, part BIGINT,
    coarse BIGINT, pulse STRUCT(from_us BIGINT, until_us BIGINT, n BIGINT)[]);
CREATE OR REPLACE TEMP TABLE islands (key BIGINT, chain BIGINT, part BIGINT, client VARCHAR, named BOOLEAN,
    channel VARCHAR, place VARCHAR, family VARCHAR, coarse BIGINT, n BIGINT, bytes_in BIGINT, bytes_out BIGINT,
    dur_us BIGINT, guard_ms BIGINT, closed BIGINT, waited BIGINT, seqs BIGINT, busy_s DOUBLE, n_overload BIGINT,
    n_server_error BIGINT, n_not_found BIGINT, n_seq_missing BIGINT, n_rejected BIGINT, first_us BIGINT, last_us BIGINT,
    peak_rps DOUBLE, seq_lo BIGINT, seq_hi BIGINT, head_lo BIGINT, head_hi BIGINT, conn_bits BIGINT,
    retry_after_ms BIGINT, nodes VARCHAR[], release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR, status_lo BIGINT,
    status_hi BIGINT, reason VARCHAR, request VARCHAR, blind VARCHAR,
    pulse STRUCT(from_us BIGINT, until_us BIGINT, n BIGINT)[], length_us BIGINT, own_s DOUBLE, answer VARCHAR,
    readers BIGINT, hits BIGINT, mean_rps DOUBLE, gap_ms DOUBLE, fast BOOLEAN, alone BOOLEAN, hurried BOOLEAN,
    enough BOOLEAN);
CREATE OR REPLACE TEMP TABLE parts AS FROM islands LIMIT 0;
CREATE OR REPLACE TEMP TABLE cures (client VARCHAR, channel VARCHAR, bucket_us BIGINT, n BIGINT);
CREATE OR REPLACE TEMP TABLE stretches (key BIGINT, chain BIGINT, part BIGINT, client VARCHAR, named BOOLEAN,
    channel VARCHAR, place VARCHAR, family VARCHAR, coarse BIGINT, n BIGINT, bytes_in BIGINT, bytes_out BIGINT,
    dur_us BIGINT, guard_ms BIGINT, closed BIGINT, waited BIGINT, seqs BIGINT, busy_s DOUBLE, n_overload BIGINT,
    n_server_error BIGINT, n_not_found BIGINT, n_seq_missing BIGINT, n_rejected BIGINT, first_us BIGINT, last_us BIGINT,
    peak_rps DOUBLE, seq_lo BIGINT, seq_hi BIGINT, head_lo BIGINT, head_hi BIGINT, conn_bits BIGINT,
    retry_after_ms BIGINT, nodes VARCHAR[], release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR, status_lo BIGINT,
    status_hi BIGINT, reason VARCHAR, request VARCHAR, blind VARCHAR,
    pulse STRUCT(from_us BIGINT, until_us BIGINT, n BIGINT)[], length_us BIGINT, own_s DOUBLE, answer VARCHAR,
    readers BIGINT, hits BIGINT, mean_rps DOUBLE, gap_ms DOUBLE, slow BOOLEAN, solo BOOLEAN);
CREATE OR REPLACE TEMP TABLE refusals (answer VARCHAR, node VARCHAR, channel VARCHAR, client VARCHAR, named BOOLEAN,
    event VARCHAR, bucket_us BIGINT, n BIGINT, first_us BIGINT, last_us BIGINT, seq_lo BIGINT, seq_hi BIGINT,
    seq_bits BIGINT, conn_bits BIGINT, head_lo BIGINT, head_hi BIGINT, slots BIGINT, bytes_in BIGINT, bytes_out BIGINT,
    dur_us BIGINT, guard_ms BIGINT, retry_after_ms BIGINT, retried BIGINT, closed BIGINT, waited BIGINT, kept BIGINT,
    kept_slow BIGINT, status_lo BIGINT, status_hi BIGINT, reason VARCHAR, release_lo VARCHAR, release_hi VARCHAR,
    ua VARCHAR, request VARCHAR, network VARCHAR, blind VARCHAR, distinct_seqs BIGINT);
CREATE OR REPLACE TEMP TABLE spread (answer VARCHAR, node VARCHAR, since_us BIGINT, until_us BIGINT, client VARCHAR,
    channel VARCHAR, first_us BIGINT, last_us BIGINT);
CREATE OR REPLACE TEMP TABLE failures (node VARCHAR, host VARCHAR, client VARCHAR, channel VARCHAR, answer VARCHAR,
    bucket_us BIGINT, n BIGINT, first_us BIGINT, last_us BIGINT, seq_lo BIGINT, seq_hi BIGINT, head_lo BIGINT,
    head_hi BIGINT, bytes_in BIGINT, bytes_out BIGINT, dur_us BIGINT, guard_ms BIGINT, retry_after_ms BIGINT,
    release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR, status_lo BIGINT, status_hi BIGINT, reason VARCHAR,
    request VARCHAR, blind VARCHAR, told_us DOUBLE, inside BIGINT, before DOUBLE, early BIGINT);
CREATE OR REPLACE TEMP TABLE fleet_seconds (answer VARCHAR, node VARCHAR, bucket_us BIGINT, first_us BIGINT,
    last_us BIGINT, n BIGINT, refused BIGINT, early_clients BIGINT, load BIGINT);
CREATE OR REPLACE TEMP TABLE retries AS FROM spread LIMIT 0;
CREATE OR REPLACE TEMP TABLE fleet_spans (answer VARCHAR, node VARCHAR, since_us BIGINT, until_us BIGINT,
    peak_rps DOUBLE, peak_us BIGINT);
CREATE OR REPLACE TEMP TABLE fleets (node VARCHAR, since_us BIGINT, until_us BIGINT, peak_rps DOUBLE, peak_us BIGINT,
    n BIGINT, bytes_in BIGINT, bytes_out BIGINT, dur_us BIGINT, guard_ms BIGINT, n_refused BIGINT, first_us BIGINT,
    last_us BIGINT, seq_lo BIGINT, seq_hi BIGINT, head_lo BIGINT, head_hi BIGINT, retry_after_ms BIGINT,
    release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR, status_lo BIGINT, status_hi BIGINT, reason VARCHAR,
    request VARCHAR, blind VARCHAR, nodes VARCHAR[], clients VARCHAR[], channels VARCHAR[], answer VARCHAR,
    pulse STRUCT(from_us BIGINT, until_us BIGINT, n BIGINT)[],
    busiest STRUCT(client VARCHAR, from_us BIGINT, until_us BIGINT, n BIGINT)[], shared VARCHAR[], at_once BOOLEAN,
    insistent BOOLEAN, restarted BOOLEAN);
CREATE OR REPLACE TEMP TABLE cases (id BIGINT, answer VARCHAR, clients VARCHAR[], named BOOLEAN, channels VARCHAR[],
    channel VARCHAR, nodes VARCHAR[], n BIGINT, hits BIGINT, bytes_in BIGINT, bytes_out BIGINT, dur_us BIGINT,
    guard_ms BIGINT, n_refused BIGINT, closed BIGINT, first_us BIGINT, last_us BIGINT, seq_lo BIGINT, seq_hi BIGINT,
    head_lo BIGINT, head_hi BIGINT, retry_after_ms BIGINT, release_lo VARCHAR, release_hi VARCHAR, ua VARCHAR,
    status_lo BIGINT, status_hi BIGINT, reason VARCHAR, request VARCHAR, blind VARCHAR,
    pulse STRUCT(from_us BIGINT, until_us BIGINT, n BIGINT)[], peak_rps DOUBLE, mean_rps DOUBLE, gap_ms DOUBLE,
    slow BOOLEAN, solo BOOLEAN, seqs BIGINT, readers BIGINT, at_once BOOLEAN, insistent BOOLEAN, restarted BOOLEAN,
    shared VARCHAR[], fleet BOOLEAN, onset_us BIGINT, place VARCHAR);
CREATE OR REPLACE TEMP TABLE plausible (answer VARCHAR, event VARCHAR, rank INTEGER);
CREATE OR REPLACE TEMP TABLE near (id BIGINT, event VARCHAR, ts_us BIGINT);
CREATE OR REPLACE TEMP TABLE silences (id BIGINT);
CREATE OR REPLACE TEMP TABLE triggered AS
    SELECT *, NULL::VARCHAR AS trigger, NULL::BIGINT AS trigger_us, NULL::BIGINT AS ended_us, NULL::BIGINT AS
    ends_us, NULL::BIGINT AS lives, NULL::BIGINT AS born_us, NULL::BIGINT AS lived_from_us, NULL::BIGINT AS
    lived_until_us
    FROM cases LIMIT 0;
CREATE OR REPLACE TEMP TABLE classed AS
    SELECT *, NULL::BOOLEAN AS ahead, NULL::BOOLEAN AS rises, NULL::BOOLEAN AS unhurried, NULL::DOUBLE AS told_ms,
    NULL::VARCHAR AS class
    FROM triggered LIMIT 0;
CREATE OR REPLACE TEMP TABLE skews (id BIGINT, other_id BIGINT, node VARCHAR, other VARCHAR, skew_us BIGINT);
CREATE OR REPLACE TEMP TABLE hubs (least_id BIGINT, id BIGINT, rule VARCHAR);
CREATE OR REPLACE TEMP TABLE episodes AS
    SELECT *, NULL::BIGINT AS incident
    FROM classed LIMIT 0;
CREATE OR REPLACE TEMP TABLE paces (incident BIGINT, pause_us DOUBLE, pace VARCHAR);
CREATE OR REPLACE TEMP TABLE pulses (incident BIGINT, id BIGINT, from_us BIGINT, until_us BIGINT, n BIGINT);
CREATE OR REPLACE TEMP TABLE parts_of_incidents AS
    SELECT *, NULL::DOUBLE AS part
    FROM episodes LIMIT 0;
CREATE OR REPLACE TEMP TABLE peaks (incident BIGINT, peak_rps DOUBLE);
CREATE OR REPLACE TEMP TABLE phases (incident BIGINT, class VARCHAR, n BIGINT, first_us BIGINT, last_us BIGINT,
    fleet BOOLEAN, clients BIGINT);
CREATE OR REPLACE TEMP TABLE roots (incident BIGINT, class VARCHAR, trigger VARCHAR, trigger_us BIGINT, ends_us BIGINT,
    passed BOOLEAN, ignores_retry_after BOOLEAN, clear BOOLEAN, solo BOOLEAN);
CREATE OR REPLACE TEMP TABLE impacts (incident BIGINT, n BIGINT, first_us BIGINT, last_us BIGINT, nodes VARCHAR[],
    bytes DOUBLE, dur_us DOUBLE, request_share DOUBLE, handler_share DOUBLE, byte_share DOUBLE, others_refused BIGINT,
    others_slowed BIGINT, others BIGINT);
CREATE OR REPLACE TEMP TABLE incidents (incident BIGINT, class VARCHAR, n BIGINT, mean_rps DOUBLE, peak_rps DOUBLE,
    pace VARCHAR, pause_us DOUBLE, first_us BIGINT, last_us BIGINT, nodes VARCHAR[], named BOOLEAN, seq_lo BIGINT,
    seq_hi BIGINT, release VARCHAR, ua VARCHAR, reason VARCHAR, status BIGINT, guard_ms DOUBLE, blind VARCHAR,
    samples STRUCT(node VARCHAR, ts_us BIGINT, request VARCHAR)[], clients VARCHAR[], channels VARCHAR[],
    phases STRUCT("class" VARCHAR, n BIGINT, first_us BIGINT, last_us BIGINT)[], trigger VARCHAR, trigger_us BIGINT,
    ends_us BIGINT, passed BOOLEAN, ignores_retry_after BOOLEAN, clear BOOLEAN, solo BOOLEAN, bytes DOUBLE,
    dur_us DOUBLE, request_share DOUBLE, handler_share DOUBLE, byte_share DOUBLE, others_refused BIGINT,
    others_slowed BIGINT, others BIGINT, cost DOUBLE, harms BOOLEAN, severity VARCHAR);
