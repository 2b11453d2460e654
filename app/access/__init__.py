"""Who may do what: tokens, rights, webhooks. Nothing of it is loaded, or costs anything, unless it is switched on."""
