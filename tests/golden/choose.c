/* Which version of attention runs at these sizes: b, s, t. */
int mirage_choose(const long *sizes) {
    /* b <= 8 */
    if (sizes[0] <= 8L) {
        /* b * t <= 92681 */
        if ((double)sizes[0] * (double)sizes[2] <= 92681.0) {
            return 0;
        }
        /* t <= 9007199254740992 */
        if (sizes[2] <= 9007199254740992L) {
            return 1;
        }
        return 2;
    }
    /* s <= 64 */
    if (sizes[1] <= 64L) {
        return 3;
    }
    /* t * s <= 1 */
    if ((double)sizes[2] * (double)sizes[1] <= 1.0) {
        return 4;
    }
    return 5;
}
