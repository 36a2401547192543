"""Who may do what: shell judgement, rules, policy and the flow that asks. Import from the rooms, not from here."""
