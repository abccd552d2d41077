#!/bin/sh
# Has the addresses that a DHCP server lent stay for ever. dracut has just ended the client that renewed them, and a
# system whose root is over NBD starts none for that interface: without this the kernel would remove the address when
# the lease ends, and the root would hang.
keep_addresses() {
    ip -4 -o addr show scope global | while read -r _ interface _ address rest; do
        case " $rest " in
            *" dynamic "*) ;;
            *) continue ;;
        esac
        ip -4 addr change "$address" dev "$interface" valid_lft forever preferred_lft forever ||
            warn "The address $address of $interface ends with its lease"
    done
}
keep_addresses
