"""Access control: tokens, rights, the webhook, the control plane's token. The server loads only the parts that are
switched on."""
