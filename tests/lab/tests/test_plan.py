import unittest

from lab import Plan, parse_rate


class Rates(unittest.TestCase):
    def test_units(self) -> None:
        self.assertEqual(parse_rate("200mbit"), 200_000_000)
        self.assertEqual(parse_rate("1.5Gbit"), 1_500_000_000)
        self.assertEqual(parse_rate("64kbit"), 64_000)

    def test_others_are_refused(self) -> None:
        for text in ["", "fast", "200", "200mbyte", "-1mbit", "0mbit", "1e3mbit"]:
            with self.subTest(text), self.assertRaisesRegex(ValueError, "is no rate"):
                parse_rate(text)


class Plans(unittest.TestCase):
    def test_numbers_are_bounded(self) -> None:
        cases: list[dict[str, int]] = [
            {"hosts": 0},
            {"hosts": 1001},
            {"hosts": 4, "racks": 5},
            {"hosts": 4, "racks": 0},
            {"hosts": 4, "rate_bits_s": 1000},
            {"hosts": 4, "racks": 2, "uplink_bits_s": 1000},
            {"hosts": 4, "flow_cap_bits_s": 1000},
            {"hosts": 4, "rails": 0},
            {"hosts": 4, "rails": 9},
            {"hosts": 4, "racks": 2, "rails": 2},
        ]
        for bad in cases:
            with self.subTest(bad), self.assertRaises(ValueError):
                Plan(**bad)  # type: ignore[arg-type]

    def test_addresses_are_distinct(self) -> None:
        addresses = {Plan.address(host) for host in range(1000)}
        self.assertEqual(len(addresses), 1000)
        self.assertFalse(any(address.endswith((".0", ".255")) for address in addresses))

    def test_racks_are_as_equal_as_can_be(self) -> None:
        plan = Plan(hosts=7, racks=3)
        racks = [plan.rack_of(host) for host in range(7)]
        self.assertEqual(racks, sorted(racks))
        self.assertEqual([racks.count(rack) for rack in range(3)], [3, 2, 2])

    def test_hosts_can_stand_in_racks_in_turn(self) -> None:
        plan = Plan(hosts=7, racks=3, in_turn=True)
        self.assertEqual([plan.rack_of(host) for host in range(7)], [0, 1, 2, 0, 1, 2, 0])
        self.assertIn("link set h3 master br-rack0 up", plan.ports_script()[0])

    def test_one_rack_has_no_uplink(self) -> None:
        self.assertEqual(Plan(hosts=2).links, ["h0", "h1"])
        self.assertEqual(Plan(hosts=2, racks=2).links, ["h0", "h1", "rack0", "rack1"])

    def test_each_rail_has_a_link_a_bridge_and_a_subnet(self) -> None:
        plan = Plan(hosts=2, rails=2)
        rails = ["h0.eth0", "h0.eth1", "h1.eth0", "h1.eth1"]
        self.assertEqual(plan.links, ["h0", "h1", *rails])
        self.assertEqual([plan.ports(link) for link in ("h1", "h1.eth1")], [rails[2:], rails[3:]])
        self.assertEqual(plan.addresses(1), ("10.77.0.2", "10.78.0.2"))
        self.assertIn("address add 10.78.0.2/16 dev eth1\n", plan.host_script("x", 1)[0])
        self.assertIn("link set h1.eth1 master middle.eth1 up\n", plan.ports_script()[0])
        self.assertIn("10.78.0.2 h1.eth1\n", plan.hosts_file())

    def test_one_rail_needs_no_name(self) -> None:
        plan = Plan(hosts=2)
        self.assertEqual(plan.ports("h1"), ["h1"])
        self.assertIn("link set h1 master middle up\n", plan.ports_script()[0])
        self.assertEqual(plan.hosts_file(), "127.0.0.1 localhost\n10.77.0.1 h0\n10.77.0.2 h1\n")

    def test_both_directions_of_each_link_are_shaped(self) -> None:
        plan = Plan(hosts=4, racks=2, rate_bits_s=10_000_000, uplink_bits_s=20_000_000)
        _, uplinks = plan.switch_script()
        _, ports = plan.ports_script()
        _, host = plan.host_script("x", 0)
        self.assertEqual(uplinks.count("rate 20000000bit"), 4)
        self.assertEqual(ports.count("rate 10000000bit"), 4)
        self.assertEqual(host.count("rate 10000000bit"), 1)

    def test_interface_names_fit(self) -> None:
        plan = Plan(hosts=1000, racks=1000)
        self.assertLess(max(len(f"br-{link}") for link in plan.links), 16)


if __name__ == "__main__":
    unittest.main()
