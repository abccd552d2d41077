"""What the paper's tables and text say in numbers; its figures have no numbers but those that the text gives."""

TABLE_1 = {"SanDrive": (31, 7), "MSD": (16, 12), "IPOD": (13, 12), "Host": (42, 32), "TransPart": (None, None)}
"""MB/s read and written; Host is the SATA disk as its own system sees it (40 and 28 within a VM)."""

TABLE_3 = {
    "SanDrive": {"Overall": 5904, "MakeDir": 34, "Copy": 782, "ScanDir": 43, "ReadAll": 57, "Make": 4987},
    "MSD": {"Overall": 4970, "MakeDir": 39, "Copy": 616, "ScanDir": 14, "ReadAll": 137, "Make": 4506},
    "IPOD": {"Overall": 3142, "MakeDir": 22, "Copy": 178, "ScanDir": 16, "ReadAll": 80, "Make": 2846},
    "TransPart": {"Overall": 2820, "MakeDir": 14, "Copy": 164, "ScanDir": 9, "ReadAll": 50, "Make": 2583},
    "Host": {"Overall": 2275, "MakeDir": 21, "Copy": 136, "ScanDir": 7, "ReadAll": 42, "Make": 2070},
}
"""Seconds of the Andrew benchmark's phases."""

FACTORS = {
    # Seconds on a device by seconds with TransPart, where the text gives one; least and most where it can be read in
    # two ways.
    ("postmark", "postmark"): {"SanDrive": 3.0, "MSD": 3.0, "IPOD": 1.0, "Host": 1.0},
    ("launch", "largest"): {"SanDrive": 10.0, "MSD": 7.0, "IPOD": 4.0, "Host": 1.0},
    ("install", "install"): {"SanDrive": (1.75, 4.0), "MSD": (1.75, 4.0), "IPOD": (1.43, 1 / 0.57), "Host": 1.0},
}
"""Figure 4: "up to a factor of 3", the iPod and Host alike; Figure 5: "up to" 10, 7 and 4; Figure 7: an improvement of
over 75 % and of 43 %, Host equivalent. Of Table III the paper calls 2.09 times as long an improvement of 109 %: a ratio
less 1, which makes 1.75 and 1.43 of Figure 7's. Taken as parts of the time that are saved, they are 4 and 1.75."""

OFFICE = (22, 73)
"""Figure 6: seconds, of more than 900, that TransPart saves: least and most of the three devices."""
NET_START, RESUMES, COSTS = (2, 15), (20, 53), (22, 68)
"""Figure 9: seconds that a start takes longer; what resuming saves; what allocation and copying take."""
NET_STOP_LIGHT, NET_STOP_HEAVY, NOT_SHORTER = (-23, -2), (11, 78), ("IPOD", 50)
"""Figure 10: seconds by which a shut-down differs, for 0 to 50 MB (but 50 MB on the iPod), and for 500 MB."""
BREAK_EVEN = 150
"""MB of changed state at which a shut-down takes as long with TransPart as without."""
