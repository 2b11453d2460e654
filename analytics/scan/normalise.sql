-- One row per line: which kind of answer it is, under which key it is added up, and its measures. Reads the view
-- "line". Numbers out of range are dropped and texts are cut: whoever sends requests writes the log.
SELECT
    answer,
    CASE WHEN answer NOT IN ('unparsable', 'future') THEN coalesce(substr(node, 1, 256), '') ELSE '' END AS node,
    CASE
        WHEN answer IN ('unparsable', 'future') THEN NULL
        -- No route of ours matched: requests are told apart by method, path and status. The path is the whole one:
        -- who asks for one page after the other repeats nothing. 499: the client left before there was an answer.
        WHEN channel IS NULL AND op IS NULL AND answer IN ('web', 'overload', 'server_error', 'fine')
            THEN coalesce(method, '?') || ' /' || substr(trim('/' FROM coalesce(path, '')), 1, 256)
                || ' ' || CAST(coalesce(status, 499) AS VARCHAR)
        ELSE substr(channel, 1, 256)
    END AS channel,
    CASE
        WHEN answer IN ('ok', 'event', 'unparsable', 'future') THEN NULL
        WHEN client IS NOT NULL THEN substr(client, 1, 256)
        -- A log without clients: failures are counted per network.
        ELSE network
    END AS client,
    client IS NOT NULL AND answer NOT IN ('ok', 'event', 'unparsable', 'future') AS named,
    CASE WHEN answer = 'event' THEN substr(event, 1, 64) END AS event,
    CASE WHEN answer IN ('unparsable', 'future') THEN 0 ELSE ts_us - ts_us % CAST(CASE
            WHEN answer = 'post' THEN 10000000
            WHEN answer IN ('served', 'ok') THEN 60000000
            ELSE 1000000 END AS BIGINT) END AS bucket_us,
    CASE WHEN answer NOT IN ('unparsable', 'future') THEN ts_us END AS ts_us,
    CASE WHEN rseq BETWEEN 0 AND 999999999999999 THEN rseq
        WHEN seq BETWEEN 0 AND 999999999999999 THEN seq END AS seq,
    CASE WHEN next_seq BETWEEN 0 AND 999999999999999 THEN next_seq END AS head,
    conn,
    status,
    substr(reason, 1, 64) AS reason,
    CASE WHEN bytes_in BETWEEN 0 AND 1099511627776 THEN bytes_in END AS bytes_in,
    CASE WHEN bytes_out BETWEEN 0 AND 1099511627776 THEN bytes_out END AS bytes_out,
    CASE WHEN wait_us BETWEEN 0 AND 604800000000 THEN wait_us END AS wait_us,
    CASE WHEN dur_us BETWEEN 0 AND 604800000000 THEN dur_us END AS dur_us,
    CASE WHEN retry_after_ms BETWEEN 0 AND 604800000 THEN retry_after_ms END AS retry_after_ms,
    CASE WHEN guard_ms BETWEEN 0 AND 604800000 THEN guard_ms END AS guard_ms,
    CASE WHEN attempt > 1 THEN 1 ELSE 0 END AS retried,
    CASE WHEN eos THEN 1 ELSE 0 END AS closed,
    -- A segment that was complete before it was asked for: how long it took says how busy the server was. At the
    -- head a GET waits for the publisher, and its wait says nothing.
    CASE WHEN answer = 'served' AND rseq + 1 < next_seq THEN 1 ELSE 0 END AS kept,
    substr(release, 1, 64) AS release,
    substr(ua, 1, 128) AS ua,
    substr(request, 1, 64) AS request,
    network,
    blind{more}
FROM (
    SELECT *,
        CASE WHEN answer IN ('overload', 'server_error', 'not_found', 'seq_missing', 'rejected', 'web')
                AND length(ip) <= 45 THEN
            {network} END AS network
    FROM (
        SELECT *,
            CASE
                WHEN ts_us > {latest_us} THEN 'future'
                WHEN ts_us IS NULL OR ts_us < 1 OR kind IS NULL OR kind NOT IN ('exchange', 'event') THEN 'unparsable'
                WHEN kind = 'event' THEN 'event'
                WHEN op = 'read' AND coalesce(method, 'GET') = 'GET' AND status = 200
                    AND (bytes_out > 0 OR bytes_out IS NULL AND blind LIKE '%bytes_out%') THEN 'served'
                WHEN status IN (429, 503) THEN 'overload'
                WHEN status >= 500 THEN 'server_error'
                WHEN op IS NULL AND channel IS NULL AND (status >= 400 OR status IS NULL AND reason = 'client_gone') THEN 'web'
                WHEN op IS NULL AND channel IS NULL AND status < 400 AND client IS NOT NULL THEN 'fine'
                WHEN status = 404 AND coalesce(op, '') <> 'api' THEN 'not_found'
                WHEN status = 470 AND coalesce(op, '') <> 'api' THEN 'seq_missing'
                WHEN status IN (400, 401, 403, 405) AND channel IS NOT NULL AND coalesce(op, '') <> 'api' THEN 'rejected'
                WHEN op = 'read' AND coalesce(method, 'GET') = 'GET' AND coalesce(bytes_out, 0) = 0 THEN
                    CASE
                        -- Who waited for two seconds has waited: long polls are renewed, however often.
                        -- nginx writes 499 where our log has no status.
                        WHEN (status IS NULL AND coalesce(reason, 'client_gone') = 'client_gone' OR status = 499) AND coalesce(dur_us, 0) < 2000000
                            THEN 'abandoned'
                        WHEN status = 200 AND coalesce(reason, '') NOT IN ('client_gone', 'evicted') THEN
                            CASE WHEN eos THEN 'ended' ELSE 'zero_byte' END
                        ELSE 'ok'
                    END
                WHEN op = 'publish' AND coalesce(reason, '') NOT IN ('client_gone', 'evicted') THEN 'post'
                ELSE 'ok'
            END AS answer
        FROM (
            SELECT * REPLACE (
                CASE WHEN grpc > 0 AND coalesce(status, 200) = 200 THEN {grpc_statuses}[grpc] ELSE status END AS status,
                CASE WHEN grpc > 0 AND coalesce(status, 200) = 200 THEN coalesce(reason, {grpc_names}[grpc])
                    ELSE reason END AS reason)
            FROM line
        ) calls
    ) lines
) told
